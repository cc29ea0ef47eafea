# semantic-fpn_resnet10t_600i_camvid.py with the optimiser of
# semantic-fpn_hcformer-nano-local_600i_camvid.py.
_base_ = ["./semantic-fpn_resnet10t_600i_camvid.py"]
optim_wrapper = dict(optimizer=dict(_delete_=True, type="TimmMuon", lr=4e-3, weight_decay=0.02))
