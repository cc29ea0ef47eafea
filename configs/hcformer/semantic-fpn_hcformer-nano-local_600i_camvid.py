# semantic-fpn_hcformer-nano_600i_camvid.py with the options of hcformer-nano-local_25e_cifar10.py:
# a stem of two convolutions, local convolutions, centred features, temperatures that let clusters
# be sharp from the start, Muon.
_base_ = ["./semantic-fpn_hcformer-nano_600i_camvid.py"]
model = dict(backbone=dict(stem="conv", local_conv=True, center=True, alpha=3.0, window_alpha=4.0))
optim_wrapper = dict(optimizer=dict(_delete_=True, type="TimmMuon", lr=4e-3, weight_decay=0.02))
