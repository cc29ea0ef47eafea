# What the published recipes of HIER and LHIER share; ../recipes.csv has a row for each of them.
_base_ = [
    "../../_base_/models/hier.py",
    "../../_base_/schedules/hier_adamw.py",
    "../../_base_/retrieval_runtime.py",
]
