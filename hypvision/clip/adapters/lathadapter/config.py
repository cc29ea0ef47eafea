"""Configuration of LatHAdapter, with a marked choice where the paper leaves a detail open."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io import at_least, more_than, one_of

DEGREES = ("abs", "relu", "clamp")
# Pairs (largest number of classes, number of attributes). The paper uses 20 attributes for ImageNet
# and 24 for SUN397, and says that the best number grows with the classes; the other rows are our
# choice.
_ATTRIBUTES = ((20, 4), (60, 8), (150, 12), (250, 16), (600, 24))
_MANY = 20


def attributes_for(classes: int) -> int:
    """Return the number of attributes that ``auto`` chooses for a number of classes, base and new
    classes together."""
    return next((count for most, count in _ATTRIBUTES if classes <= most), _MANY)


@dataclass(frozen=True)
class LatHAdapterConfig(AdapterConfig):
    """The options of LatHAdapter. The defaults are the paper's. Where the paper gives none, the
    default is our choice, marked "here" below.

    Attributes:
        attributes: number N of attribute vectors; 0 or ``"auto"`` for :func:`attributes_for` of
            ``classes``.
        classes: number of classes of the data set, from which ``attributes=0`` follows.
        dim: length of the features, for hosts whose features differ from the model's embeddings
            (PromptKD: the teacher's); 0: the length of the embeddings.
        beta: weight of the refinement (Sec. 3.2, Table: 0.1).
        c: curvature of the ball (0.1).
        sigma: margin of the hierarchical losses (0.1).
        neighbours: k of the mutual neighbours (3).
        draws: number of triplets of each anchor (here as HIER: 50).
        tau: temperature of the choice of ancestors (here as HIER's code: 0.1).
        lca_score: the score of a candidate ancestor: ``"distance"``, its negative distance over tau
            (here, as in HIER's code), or ``"exp"``, the exponential of its negative distance,
            without tau (as in the paper).
        degree: how negative cosines enter the degree of a node, which the paper leaves undefined:
            ``"abs"`` sums absolute values, ``"relu"`` sets negative cosines to 0 everywhere,
            ``"clamp"`` is the formula with a degree of at least 1e-6 (here: abs). All three agree
            if all cosines are positive.
        feature_norm: ``"l2"``: unit vectors are mapped to the ball; ``"none"``: features as they
            are, but clipped, as in HIER (here: l2).
        clip_radius: the radius at which ``feature_norm="none"`` clips features (here as HIER: 2.3).
        riemannian: turn gradients in the ball into Riemannian ones, as HIER does (here: no).
        exclude_anchor: never use an anchor as its own negative; HIER's code may (here: never).
        least: smallest number of mutual neighbours that an anchor must have; 2 in HIER's code
            (here: 1).
        start: initial attributes: ``"random"`` vectors of about unit length, or ``"text"``: the
            mean class feature with some noise, once the classes are known (here: random).
        average: include attributes in PromptSRC's average over epochs (here: yes).
        hierarchy: False: an ablation with the refiner alone, without hierarchical losses and
            distances.
    """

    attributes: int | str = 0
    classes: int = 100
    dim: int = 0
    beta: float = 0.1
    c: float = 0.1
    sigma: float = 0.1
    neighbours: int = 3
    draws: int = 50
    tau: float = 0.1
    lca_score: str = "distance"
    degree: str = "abs"
    feature_norm: str = "l2"
    clip_radius: float = 2.3
    riemannian: bool = False
    exclude_anchor: bool = True
    least: int = 1
    start: str = "random"
    average: bool = True
    hierarchy: bool = True

    def __post_init__(self) -> None:
        one_of(DEGREES, degree=self.degree)
        one_of(("distance", "exp"), lca_score=self.lca_score)
        one_of(("l2", "none"), feature_norm=self.feature_norm)
        one_of(("random", "text"), start=self.start)
        if self.attributes == "auto":
            object.__setattr__(self, "attributes", 0)
        super().__post_init__()
        more_than(0, c=self.c, tau=self.tau, clip_radius=self.clip_radius)
        at_least(0, beta=self.beta, sigma=self.sigma)
        at_least(0, integer=True, attributes=self.attributes, dim=self.dim)
        at_least(1, integer=True, classes=self.classes, draws=self.draws, least=self.least)
        at_least(2, integer=True, neighbours=self.neighbours)

    @property
    def raw(self) -> bool:
        """Whether features are used without normalisation."""
        return self.feature_norm == "none"

    @property
    def count(self) -> int:
        return int(self.attributes) or attributes_for(self.classes)
