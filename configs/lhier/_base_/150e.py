# The large data sets: 150 epochs, the neck alone for five of them.
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
train_cfg = dict(max_epochs=150)
custom_hooks = [dict(type="BackboneWarmUpHook", epochs=5)]
