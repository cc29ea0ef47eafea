# semantic-fpn_hcformer-nano_600i_camvid.py with sharp clusters: a centre is near the pixels it was
# pooled from (locality), features without their mean and a higher temperature tell centres apart; a
# stem of two convolutions, Muon.
_base_ = ["./semantic-fpn_hcformer-nano_600i_camvid.py"]
model = dict(backbone=dict(stem="conv", center=True, alpha=3.0, window_alpha=4.0, locality=2.0))
optim_wrapper = dict(optimizer=dict(_delete_=True, type="TimmMuon", lr=4e-3, weight_decay=0.02))
