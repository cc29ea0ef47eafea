_base_ = [
    "../_base_/language_runtime.py",
    "../_base_/schedules/helm_1b.py",
    "../_base_/datasets/wikipedia.py",
]
runner_type = "ShardedRunner"  # weights, gradients and states are cut among the processes
model = dict(type="LanguageModel", preset="helm_mice_1b_eval")
train_dataloader = dict(batch_size=1)
default_hooks = dict(
    logger=dict(interval=2560), checkpoint=dict(interval=25600)
)  # 10 and 100 steps
