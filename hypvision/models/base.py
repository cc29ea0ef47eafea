"""What the networks of this package share: timm's contract for stages, and checkpoints of every origin.

timm gives ``create_model(..., checkpoint_path=FILE)`` the names in the file as they are. :class:`AnyCheckpoint` lets
``load_state_dict`` itself translate them, so that official files, files of trainings and the zoo's small files load by
every door.
"""

from typing import Any

from timm.models import build_model_with_cfg
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from hypvision.checkpoints.match import check_kinds, filtered
from hypvision.checkpoints.read import allow_training_files, network_weights
from hypvision.models.timm_models import forget_weights, read_overlay

__all__ = ["AnyCheckpoint", "FeatureMaps", "StagedModel", "build_model", "head_names"]

allow_training_files()  # for checkpoint_path, which timm reads before any code of a model runs


def build_model(cls: type[nn.Module], variant: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    """:func:`timm.models.build_model_with_cfg`, with the file of ``pretrained_cfg_overlay`` read by our reader."""
    if pretrained:
        kwargs["pretrained_cfg_overlay"] = read_overlay(kwargs.get("pretrained_cfg_overlay"))
    return forget_weights(build_model_with_cfg(cls, variant, pretrained, **kwargs))


def head_names(model: nn.Module) -> set[str]:
    """The names of the parameters of a timm model's classifier, or classifiers."""
    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, (tuple, list)) else (classifier,)
    inside = {id(parameter) for head in heads for parameter in head.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in inside}


class AnyCheckpoint(nn.Module):
    """A network whose ``load_state_dict`` takes whatever the ``checkpoint_filter_fn`` of its family takes.

    The class and that function must stand in the same module.
    """

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        if not prefix:
            _replace(state_dict, filtered(self, network_weights(state_dict)), self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, *args)


class FeatureMaps(FeatureGetterNet):
    """timm's network of feature maps, which loads checkpoints of the whole network too, leaving out its other parts."""

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        expected = self.state_dict()
        if not prefix and not state_dict.keys() <= expected.keys():
            weights = filtered(self.model, network_weights(state_dict))
            _replace(
                state_dict, {f"model.{name}": v for name, v in weights.items() if f"model.{name}" in expected}, expected
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


def _replace(state_dict: dict, weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Put weights in the place of those in a state dict; numbers of another kind than the model's are an error."""
    check_kinds(expected, weights)
    state_dict.clear()
    state_dict.update(weights)


class StagedModel(AnyCheckpoint):
    """A network of ``stages``, each with a switch ``grad_checkpointing``, and a ``head``."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the blocks in backward instead of keeping their activations."""
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The head, or an identity."""
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))
