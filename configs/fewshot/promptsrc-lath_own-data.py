# Few-shot recognition on data of one's own: DIR/NAME/train/CLASS/*.jpg and
# DIR/NAME/test/CLASS/*.jpg, or a split.json; classnames.txt (lines 'FOLDER NAME') and template.txt
# beside them if folders are not called like their classes.
_base_ = []  # without it mmengine does not run the import below
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(
    few_shot_config("promptsrc+lath", "shots", root="data", dataset="mine", classes=10, images=160)
)
