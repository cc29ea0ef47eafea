# As efficientnet-lite0_10e_grocery.py with ideal prototypes in a ball of 50 dimensions (Ghadimi
# Atigh et al., NeurIPS 2021) in place of the linear head. It begins at zero: with random values all
# images are far from their prototypes, and the first steps take the features away.
_base_ = ["./efficientnet-lite0_10e_grocery.py"]
model = dict(prototypes=dict(dim=50, slope=0.1), label_smoothing=0.0, head_init="zero")
