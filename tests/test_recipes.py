"""The recipes of the papers beside the configs as they resolve: a table in the README of each
family.

python tests/test_recipes.py hecnn     # prints the table of configs/hecnn/README.md
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import clip_models
from helpers.configs import braces
from mmengine.config import Config
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from hypvision.engine.config import load_config
from hypvision.engine.param_groups import TimmParamGroups
from hypvision.openmmlab.backbone import TimmBackbone

ROOT = Path(__file__).parents[1] / "configs"
UNKNOWN = "unknown"
OURS = "ours: it is not published"

# family -> training -> the config, what paper and code say of each setting, and why something
# differs here
PUBLISHED: dict[str, dict[str, tuple[str, dict[str, str], dict[str, str]]]] = {
    "hecnn": {
        "HCNN, CIFAR": (
            "hcnn-resnet18_200e_cifar10",
            {
                "optimiser": "RiemannianSGD, rate 0.1, decay 0.0005, momentum 0.9 (Nesterov)",
                "batch": "128",
                "length": "200 epochs",
                "schedule": "x0.2 after epochs 60, 120, 160",
                "other rates": "points x0.2, without the first step; curvatures fixed",
                "precision": "float32",
                "clipping": "none",
                "augmentation": "crops of 32 padded by 4, mirrored",
                "padding": "zeros",
                "test": "32 pixels, whole image",
                "seeds": "5",
            },
            {"seeds": "`--seeds 5`",
            "other rates": "they have a rate in every config; HCNN has no curvature to learn"},
        ),
        "HECNN+, CIFAR": (
            "hecnn-{resnet18,resnet50}_200e_{cifar10,cifar100}",
            {
                "optimiser": "RiemannianSGD, rate 0.1, decay 0.0005, momentum 0.9 (Nesterov)",
                "batch": "128",
                "length": "200 epochs",
                "schedule": "x0.2 after epochs 60, 120, 160",
                "other rates": UNKNOWN,
                "precision": "float32",
                "augmentation": "crops of 32 padded by 4, mirrored",
                "seeds": "5",
            },
            {"other rates": "of points as HCNN's; of curvatures " + OURS, "seeds": "`--seeds 5`"},
        ),
        "HECNN+, Tiny-ImageNet": (
            "hecnn-{resnet18,resnet50}_200e_tiny-imagenet",
            {
                "batch": "128",
                "length": "200 epochs",
                "augmentation": "crops of 64 padded by 4, mirrored",
                "padding": "zeros",
                "test": "64 pixels, whole image",
            },
            {},
        ),
    },
    "himapper": {
        "paper": (
            "himapper-{deit-tiny,deit-small,deit-base,swin-tiny,swin-small,resnet50}_8xb128-50e_in1k",
            {
                "optimiser": "AdamW, rate 0.0001, decay 0.0001",
                "batch": "1024",
                "length": "50 epochs",
                "schedule": "cosine",
                "other rates": UNKNOWN,
                "precision": UNKNOWN,
                "clipping": "none",
                "augmentation": "rand-m9-mstd0.5-inc1, jitter 0.3, erasing 0.25",
                "mixup, cutmix, label smoothing": "0.8, 1, 0.1",
                "repeated augmentation": "1",
                "drop path": "0.1",
                "moving average": UNKNOWN,
                "test": "224 pixels, crop 0.875",
            },
            {
                "batch": "8 processes, of which the paper does not say",
                "schedule": "the lowest rate " + OURS,
                "other rates": OURS,
                "precision": "as the released code",
                "moving average": "as the released code",
            },
        ),
        "paper, EfficientNet-B4": (
            "himapper-efficientnet-b4_16xb64-50e_in1k",
            {
                "optimiser": "AdamW, rate 0.0001, decay 0.0001",
                "batch": "1024",
                "length": "50 epochs",
                "test": "380 pixels",
            },
            {"batch": "16 processes", "test": "timm's crop"},
        ),
        "released code": (
            "himapper-official-{deit-tiny,deit-small,deit-base,swin-tiny,swin-small}_8xb64-100e_in1k",
            {
                "optimiser": "AdamW, rate 1e-05, decay 0.05",
                "batch": "64 a process, rate for 512",
                "length": "100 epochs",
                "schedule": "cosine to 1e-06",
                "other rates": "none",
                "precision": "AMP",
                "clipping": "none",
                "repeated augmentation": "3",
                "moving average": "0.99996",
                "frozen": "patch_embed",
                "test": "224 pixels, crop 0.875",
            },
            {"batch": "8 processes"},
        ),
        "released code, CNNs": (
            "himapper-official-{resnet50_8xb64,efficientnet-b4_16xb32}-100e_in1k",
            {"optimiser": "AdamW, rate 1e-05, decay 0.05", "length": "100 epochs",
            "frozen": "none"},
            {},
        ),
        "UPerNet, DeiT; published, the baseline's": (
            "upernet_himapper-{deit-tiny,deit-small}_8xb2-80k_ade20k-512x512",
            {
                "optimiser": "AdamW, rate 6e-05, decay 0.01",
                "batch": "8 x 2",
                "length": "80000 iterations",
                "schedule": "linear over 1500 iterations, polynomial, power 1",
                "not decayed of the backbone": "norms, positions, class token",
                "training size": "2048 x 512 times 0.5 to 2, crops of 512",
                "drop path": "0.1",
                "maps": "2, 5, 8, 11",
                "channels of head and second head": "512, 256 with weight 0.4",
                "mapper": UNKNOWN,
            },
            {
                "not decayed of the backbone": "biases, too: timm's groups",
                "mapper": "the paper says that the fine-tuned backbone is the start, and nothing "
                          "of the maps",
            },
        ),
        "UPerNet, Swin-T; published, the baseline's": (
            "upernet_himapper-swin-tiny_8xb2-160k_ade20k-512x512",
            {
                "optimiser": "AdamW, rate 6e-05, decay 0.01",
                "batch": "8 x 2",
                "length": "160000 iterations",
                "schedule": "linear over 1500 iterations, polynomial, power 1",
                "not decayed of the backbone": "norms, positions",
                "drop path": "0.3",
            },
            {"not decayed of the backbone": "biases, too: timm's groups"},
        ),
        "Mask R-CNN": (
            "mask-rcnn_himapper-{deit-tiny,deit-small}_8xb2-1x_coco",
            {
                "optimiser": UNKNOWN,
                "batch": UNKNOWN,
                "length": UNKNOWN,
                "schedule": UNKNOWN,
                "training size": UNKNOWN,
                "drop path": UNKNOWN,
                "pyramid": UNKNOWN,
            },
            {
                "optimiser": "as is common for transformers",
                "batch": "mmdet's",
                "length": "mmdet's 1x",
                "schedule": "mmdet's 1x",
                "training size": "mmdet's",
                "drop path": "as in classification",
                "pyramid": "ViTDet's",
            },
        ),
    },
    "hyperclip": {
        "segmentation, the code": (
            "hyperclip-vitb16_4xb1-80k_coco-stuff164k",
            {
                "optimiser": "AdamW, rate 0.0002, decay 0.0001",
                "batch": "4 x 1",
                "length": "80000 iterations",
                "schedule": "cosine to 0",
                "other rates": "clip x0.075",
                "not decayed": "norms",
                "precision": "float32",
                "clipping": "norm 0.01",
                "training size": "short side 384, crops of 384",
                "test size": "short side 640, slides of 384 on 640 x 640",
                "curvatures of text and image": "1, 0.01",
            },
            {"curvatures of text and image": "the paper's text has 0.01 for both; the same numbers "
                                             "unless a row is longer than 3.8"},
        ),
        "segmentation, the paper's text": (
            "hyperclip-paper-vitb16_4xb1-80k_coco-stuff164k",
            {"optimiser": "Adam, rate and decay unknown", "other rates": "clip 1e-05"},
            {"optimiser": "the head's rate is the code's; Adam's decay is a part of the gradient, "
                          "and would shrink the blocks", "other rates": "the same: 0.05 of 0.0002"},
        ),
        "segmentation, ViT-L": (
            "hyperclip-vitl14-336_4xb1-80k_coco-stuff164k",
            {
                "optimiser": "AdamW, rate 0.0002, decay 0.0001",
                "batch": "4 x 1",
                "length": "80000 iterations",
                "other rates": "clip x0.075",
                "training size": "short side 384, crops of 384 as 336",
                "adapted image blocks": "0 to 10 and the last of 24",
                "what trains of CLIP": "nothing, by a left-over value of the released file",
            },
            {
                "adapted image blocks": "the code counts to 12: "
                                        "`model.adapter.official_twelve_layers=True`",
                "what trains of CLIP": "what the paper says",
            },
        ),
        "detection; published, what CLIM's code says, the likely host": (
            "hyperclip-det-vitb16_8xb8-3e_coco48-17",
            {
                "optimiser": "AdamW, rate 0.0001, decay 0.1",
                "batch": "64",
                "length": "3 epochs",
                "schedule": "linear over 250 iterations",
                "other rates": UNKNOWN,
                "precision": "AMP",
                "clipping": "norm 1",
                "training size": "640 x 640 times 0.1 to 2, crops of 640",
                "blocks for the pyramid": "3, 5, 7, 11",
                "convolutions of proposals and boxes": "2, 4",
                "temperatures of head and CLIP": "50, 75",
                "weights of CLIP, base and novel": "0.1, 0.8",
                "weight of the background": "0.6",
                "least score, overlap of NMS": "0.01, 0.4",
            },
            {
                "batch": "8 processes",
                "schedule": "the decay after the warm-up " + OURS,
                "other rates": "as in segmentation; CLIM's CLIP is frozen",
                "precision": "`--amp`",
            },
        ),
        "panoptic": (
            "hyperclip-panoptic-vitb16_8xb2-50e_coco116-17",
            {
                "optimiser": UNKNOWN,
                "batch": UNKNOWN,
                "length": UNKNOWN,
                "schedule": UNKNOWN,
                "other rates": UNKNOWN,
                "clipping": UNKNOWN,
                "training size": UNKNOWN,
                "classes of training": "COCO's 133, tested on ADE20K",
            },
            {
                "optimiser": "MaskFormer's", "batch": "MaskFormer's 16", "length": OURS,
                "schedule": OURS, "other rates": "as in segmentation", "clipping": OURS,
                "training size": OURS,
                "classes of training": "17 are held out; the first lines of the config say how to "
                                       "train all",
            },
        ),
        "CAT-Seg": (
            "catseg-{vitb16,vitl14-336}_4xb1-80k_coco-stuff164k",
            {"other rates": "clip x0.01", "batch": "4 x 1"},
            {},
        ),
    },
    "lvit": {
        "CIFAR": (
            "lvit-tiny_300e_{cifar10,cifar100}",
            {
                "optimiser": "AdamW, rate 0.0001, decay 0.01",
                "batch": "64",
                "length": "300 epochs",
                "schedule": "x0.1 every 30 epochs",
                "other rates": "positions: Riemannian Adam, rate 0.0001, decay 0.0001",
                "precision": UNKNOWN,
                "clipping": UNKNOWN,
                "augmentation": "crops of 32 padded by 4, mirrored",
                "padding": UNKNOWN,
                "mean and deviation of pixels": UNKNOWN,
                "test": UNKNOWN,
                "seeds": UNKNOWN,
            },
            {
                "other rates": "positions are space parts, which AdamW keeps on the hyperboloid; "
                               "their decay is the published one",
                "precision": OURS,
                "clipping": OURS,
                "padding": OURS,
                "mean and deviation of pixels": "CIFAR-10's",
                "test": OURS,
                "seeds": "`--seeds 5`",
            },
        ),
        "ImageNet-1k": (
            "lvit-{tiny,small,base,base-hypercore}_4xb256-310e_in1k",
            {
                "optimiser": UNKNOWN,
                "batch": UNKNOWN,
                "length": UNKNOWN,
                "schedule": UNKNOWN,
                "precision": UNKNOWN,
                "clipping": UNKNOWN,
                "augmentation": UNKNOWN,
                "mixup, cutmix, label smoothing": UNKNOWN,
                "drop path": UNKNOWN,
                "mean and deviation of pixels": UNKNOWN,
                "test": UNKNOWN,
            },
            {
                "optimiser": "as is common for transformers",
                "batch": "as HCFormer's",
                "length": "as HCFormer's",
                "schedule": "as HCFormer's",
                "precision": "as HCFormer's",
                "clipping": "as HCFormer's",
                "augmentation": "as HCFormer's",
                "mixup, cutmix, label smoothing": "as HCFormer's",
                "drop path": "as HCFormer's; the module has none",
                "mean and deviation of pixels": "as timm's ViTs have them",
                "test": "as HCFormer's",
            },
        ),
    },
    "lhier": {
        "HIER, ResNet-50, CUB": (
            "hier_resnet50_2xb90-100e_cub200",
            {
                "optimiser": "AdamW, rate 0.0001, decay 0.01, eps 0.0001",
                "batch": "2 x 90, rate for 180",
                "images of a class in a batch": "2",
                "length": "100 epochs",
                "schedule": "x0.5 every 5 epochs",
                "warm-up of the neck alone": "1 epochs",
                "other rates": "neck x1, ancestors x50, class proxies x10000",
                "precision": "AMP",
                "clipping": "values 10",
                "augmentation": "random crops of 224, from 0.08 of the area, mirrored",
                "mean and deviation of pixels": "ImageNet's",
                "batch norms": "frozen",
                "dimensions": "512",
                "loss": "Proxy-Anchor + 0.5 HIER, 512 ancestors, 20 neighbours, 50 draws",
                "test": "224 pixels, crop 0.875",
            },
            {},
        ),
        "HIER, ResNet-50, Cars": ("hier_resnet50_2xb90-100e_cars196",
        {"schedule": "x0.5 every 10 epochs"}, {}),
        "HIER, ResNet-50, SOP": (
            "hier_resnet50_2xb90-150e_sop",
            {
                "optimiser": "AdamW, rate 0.0006, decay 0.0001, eps 0.0001",
                "length": "150 epochs",
                "schedule": "x0.3 every 25 epochs",
                "warm-up of the neck alone": "5 epochs",
                "batch norms": "frozen",
            },
            {},
        ),
        "HIER, ResNet-50, In-Shop": ("hier_resnet50_2xb90-150e_inshop",
        {"schedule": "x0.3 every 20 epochs"}, {}),
        "HIER, DeiT-S and ViT-S, CUB and Cars": (
            "hier_{deit,vit}-small_2xb90-100e_{cub200,cars196}",
            {
                "optimiser": "AdamW, rate 1e-05, decay 0.01, eps 0.0001",
                "batch": "2 x 90, rate for 180",
                "length": "100 epochs",
                "schedule": "constant",
                "warm-up of the neck alone": "1 epochs",
                "other rates": "neck x1, ancestors x50, class proxies x10000",
                "augmentation": "random crops of 224, from 0.2 of the area, mirrored",
                "frozen": "patch embedding",
                "dimensions": "128; 384 in the table, too",
            },
            {"dimensions": "128 by `--cfg-options model.neck.dim=128`"},
        ),
        "HIER, DeiT-S and ViT-S, SOP and In-Shop": (
            "hier_{deit,vit}-small_2xb90-150e_{sop,inshop}",
            {
                "optimiser": "AdamW, rate 1e-05, decay 0.0001, eps 0.0001",
                "length": "150 epochs",
                "schedule": "constant",
                "warm-up of the neck alone": "5 epochs",
                "other rates": "neck x100, ancestors x50, class proxies x10000",
                "dimensions": "128, 512 for ViT-S on In-Shop; 128 and 384 in the table",
            },
            {"dimensions": "as the table"},
        ),
        "HIER, DINO ViT-S, CUB and Cars": (
            "hier_dino-small_2xb90-100e_{cub200,cars196}",
            {"optimiser": "AdamW, rate 5e-06, decay 0.01, eps 0.0001",
            "mean and deviation of pixels": "ImageNet's"},
            {},
        ),
        "HIER, DINO ViT-S, SOP and In-Shop": (
            "hier_dino-small_2xb90-150e_{sop,inshop}",
            {
                "optimiser": "AdamW, rate 5e-06, decay 0.0001, eps 0.0001",
                "other rates": "neck x100, ancestors x50, class proxies x10000",
            },
            {},
        ),
        "HIER, ViT-S, all data": (
            "hier_vit-small_2xb90-{100e_cub200,100e_cars196,150e_sop,150e_inshop}",
            {"mean and deviation of pixels": "0.5 for both"},
            {},
        ),
        **{
            f"LHIER, {network}, {data}": (
                f"lhier_{stem}",
                {"optimiser": "RiemannianAdamW, other settings as HIER's", "length": length,
                "curvature": UNKNOWN},
                {"optimiser": "HIER's settings", "curvature": OURS},
            )
            for network, data, stem, length in (
                ("ResNet-50", "CUB and Cars", "resnet50_2xb90-100e_{cub200,cars196}", "100 epochs"),
                ("ResNet-50", "SOP and In-Shop", "resnet50_2xb90-150e_{sop,inshop}", "150 epochs"),
                ("DeiT-S and ViT-S", "CUB and Cars", "{deit,vit}-small_2xb90-100e_{cub200,cars196}",
                "100 epochs"),
                ("DeiT-S and ViT-S", "SOP and In-Shop", "{deit,vit}-small_2xb90-150e_{sop,inshop}",
                "150 epochs"),
                ("DINO ViT-S", "CUB and Cars", "dino-small_2xb90-100e_{cub200,cars196}",
                "100 epochs"),
                ("DINO ViT-S", "SOP and In-Shop", "dino-small_2xb90-150e_{sop,inshop}",
                "150 epochs"),
            )
        },
    },
    "hierarcaps": {
        "radial embeddings": (
            "radial-clip-{vitb32,vitl14}_1xb8-1e_hierarcaps",
            {
                "optimiser": "AdamW, rate 1e-07, decay 0.01",
                "batch": "1 x 8",
                "length": "1 epochs",
                "schedule": "constant",
                "precision": "float32",
                "clipping": "none",
                "root": "the empty text, learning along",
            },
            {},
        ),
    },
    "hyperbolic-clip": {
        "MERU": (
            "{clip,meru}-vit-{s,b,l}_8xb256-120k_redcaps",
            {
                "optimiser": "AdamW, rate 0.0005, decay 0.2, betas 0.9, 0.98",
                "batch": "2048",
                "length": "120000 iterations",
                "schedule": "linear over 4000 iterations, cosine squared to 0",
                "clipping": "none",
                "augmentation": "random crops of 224, from 0.5 of the area",
                "entailment": "0.2",
                "captions that begin with their subreddit": "0.5",
                "not decayed": "logit_scale, curv, visual_alpha, textual_alpha",
                "mean and deviation of pixels": "ImageNet's",
            },
            {"batch": "8 processes",
            "schedule": "the same: (1 + cos x) / 2 is the square of cos x / 2"},
        ),
        "HyCoCLIP": (
            "hycoclip-vit-{s,b}_8xb96-500k_grit",
            {
                "optimiser": "AdamW, rate 0.0005, decay 0.2, betas 0.9, 0.98",
                "batch": "768",
                "length": "500000 iterations",
                "augmentation": "random crops of 224, from 0.5 of the area",
                "entailment": "0.2",
                "not decayed": "logit_scale, curv, visual_alpha, textual_alpha",
                "mean and deviation of pixels": "(0.229, 0.224, 0.225) for both",
            },
            {
                "batch": "8 processes",
                "mean and deviation of pixels": "in HyCoCLIP's code two arguments change places; "
                                                "the first layer learns either. Its published "
                                                "files are used with what they say",
            },
        ),
        "UNCHA": (
            "uncha-vit-{s,b}_8xb96-500k_grit",
            {
                "optimiser": "AdamW, rate 0.0005, decay 0.2, betas 0.9, 0.98",
                "batch": "768",
                "length": "500000 iterations",
                "augmentation": "random crops of 224, from 0.8 of the area, grey with probability "
                                "0.2",
                "boxes of an image": "the first 5",
                "entailment": "0.2",
                "not decayed": "logit_scale, curv, visual_alpha, textual_alpha",
                "mean and deviation of pixels": "(0.229, 0.224, 0.225) for both",
            },
            {"batch": "8 processes", "mean and deviation of pixels": "as HyCoCLIP's"},
        ),
        "PHyCLIP": (
            "phyclip-vit-{s,b,l}_8xb96-500k_grit",
            {
                "optimiser": "AdamW, rate 0.0005, decay 0.2, betas 0.9, 0.98",
                "batch": "768",
                "length": "500000 iterations",
                "augmentation": "random crops of 224, from 0.5 of the area",
                "boxes of an image": "one at random",
                "entailment": "0.2",
                "not decayed": "logit_scale",
                "mean and deviation of pixels": "ImageNet's",
            },
            {"batch": "8 processes"},
        ),
    },
    "hyperbolic-segmentation": {
        f"DeepLabV3+, {data}": (
            f"hyperbolic-deeplabv3plus_resnetv2-101_{epochs}e_{name}",
            {
                "optimiser": f"RiemannianSGD, rate {rate}, decay 0.0001, momentum 0.9",
                "batch": "5",
                "length": f"{epochs} epochs",
                "schedule": "from 0.01 over 2500 iterations, power 0.9, times polynomial, "
                            "power 0.9",
                "other rates": "backbone x0.1, *norm* x0",
                "clipping": "norm 1, of the offsets",
                "training size": "the image times 0.5 to 2, crops of 513",
                "dimensions": "256",
                "curvature": f"{c} at first, learned",
                "nodes of the tree": nodes,
                "labels of the loss": "shrunk to the maps",
            },
            {
                "schedule": "mmengine's warm-up is linear",
                "clipping": "mmengine clips all gradients together or none",
                "training size": "mmseg's size of the image",
                "curvature": "fixed: `model.decode_head.learn_c=True`",
                "nodes of the tree": "the official trees state no licence and are not copied: "
                                     "give `tree` and `classes`",
            },
        )
        for data, name, epochs, rate, c, nodes in (
            ("PASCAL VOC", "voc12", 40, "0.01", "2", "35"),
            ("COCO-Stuff 10k", "coco-stuff10k", 70, "0.001", "0.1", "244"),
            ("ADE20K", "ade20k", 140, "0.001", "1", "201"),
        )
    },
    "helm": {
        "115M, 120M": (
            "{llama-115m,helm-d-115m,deepseek-120m,helm-mice{,-const,-full,-learned}-120m}_4xb4_wikipedia",
            {
                "optimiser": "AdamW, rate 0.0004, decay 0.01; for points Riemannian Adam, the same "
                             "rate, no decay",
                "not decayed": "points, biases, HELM-MiCE's norms, scales (but HELM-MiCE's softmax "
                               "scales)",
                "batch": "4 x 4, accumulated over 64", "length": "2400 steps",
                "schedule": "linear over 72 steps, cosine to 0.1 of the rate",
                "precision": "AMP, bfloat16", "clipping": "norm 1", "context": "2048 tokens",
            },
            {
                "optimiser": "one optimiser takes the steps of both; points without decay here too",
                "not decayed": (
                    "the published scripts choose by the ends of names, so that curvatures, which "
                    "decay can make negative, `w_y` of residual connections, HELM-D's norms and "
                    "HELM-MiCE's softmax scales decay: `paramwise_cfg=dict(released=True)`"
                ),
            },
        ),
        "1B": (
            "{deepseek,helm-mice{,-const,-full,-learned}}-1b_4xb1_wikipedia",
            {
                "not decayed": "biases, norms, the scale of shared experts",
                "batch": "4 x 1, accumulated over 256",
                "length": "2400 steps",
                "precision": "AMP, bfloat16",
            },
            {
                "not decayed": "as above; published, its table of words decays, which holds no "
                "points"
            },
        ),
    },
}  # fmt: skip


@cache
def recipe(pattern: str) -> dict[str, str]:
    """What configs, ``a{b,c}``, say once their bases are resolved; only settings that they
    share."""
    first, *others = (_one(name) for name in braces(pattern))
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }


def _one(name: str) -> dict[str, str]:
    cfg = load_config(name)
    found = {**_optimiser(cfg, name), **_data(cfg), **_model(cfg)}
    return {key: value for key, value in found.items() if value is not None}


def _optimiser(cfg: Config, name: str) -> dict[str, Any]:
    wrapper, loop, loader = cfg.optim_wrapper, cfg.train_cfg, cfg.train_dataloader
    optimizer, scales = wrapper.optimizer, wrapper.get("paramwise_cfg") or {}
    steps = wrapper.get("accumulative_counts", 1)
    text = f"{optimizer.type}, rate {optimizer.lr:g}, decay {optimizer.weight_decay:g}"
    if "momentum" in optimizer:
        text += (
            f", momentum {optimizer.momentum:g}{' (Nesterov)' if optimizer.get('nesterov') else ''}"
        )
    if tuple(optimizer.get("betas", (0.9, 0.999))) != (0.9, 0.999):
        text += f", betas {', '.join(f'{beta:g}' for beta in optimizer.betas)}"
    if optimizer.get("eps", 1e-8) != 1e-8:
        text += f", eps {optimizer.eps:g}"
    processes = re.search(r"_(\d+)xb(\d+)", name)
    batch = str(loader.batch_size)
    if processes is not None:
        assert int(processes[2]) == loader.batch_size
        batch = f"{processes[1]} x {batch}"
    scaled = cfg.get("auto_scale_lr") or {}
    if scaled.get("enable") and processes and int(processes[1]) * loader.batch_size != 1024:
        batch += f", rate for {scaled.base_batch_size}"
    clip = wrapper.get("clip_grad")
    if clip is None:
        clipping = "none"
    else:
        clipping = (
            f"values {clip.clip_value:g}"
            if clip.get("type") == "value"
            else f"norm {clip.max_norm:g}"
        )
    kind = f", {wrapper.dtype}" if "dtype" in wrapper else ""
    hooks = {hook.type: hook for hook in cfg.get("custom_hooks") or []}
    average, warm = hooks.get("EMAHook"), hooks.get("BackboneWarmUpHook")
    length = (
        f"{loop.max_epochs} epochs"
        if "max_epochs" in loop
        else f"{loop.max_iters // steps} iterations"
    )
    return {
        "optimiser": text,
        "batch": batch + (f", accumulated over {steps}" if steps > 1 else ""),
        "length": length.replace("iterations", "steps") if steps > 1 else length,
        "schedule": _schedule(cfg.get("param_scheduler") or [], steps),
        "other rates": _rates(scales),
        "not decayed": _not_decayed(wrapper, scales),
        "precision": f"AMP{kind}" if wrapper.get("type") == "AmpOptimWrapper" else "float32",
        "clipping": clipping,
        "moving average": f"{1 - average.momentum:g}" if average else None,
        "warm-up of the neck alone": f"{warm.epochs} epochs" if warm else None,
        "seeds": "1",
    }


def _schedule(schedulers: list[Any], steps: int) -> str:
    parts: list[str] = []
    milestones: list[int] = []
    for part in schedulers:
        if part.type == "LinearLR":
            unit = "epochs" if part.by_epoch else "steps" if steps > 1 else "iterations"
            # the first of 4,001 steps has the rate 0
            first = 0 if part.by_epoch else part.end % 2
            length = part.end // steps if steps > 1 else part.end - first
            parts.append(f"linear over {length} {unit}")
        elif part.type == "CosineAnnealingLR":
            ratio = part.get("eta_min_ratio")
            parts.append(
                f"cosine to {part.eta_min:g}"
                if ratio is None
                else f"cosine to {ratio:g} of the rate"
            )
        elif part.type == "PolyLR":
            parts.append(f"polynomial, power {part.power:g}")
        elif part.type == "StepLR":
            parts.append(f"x{part.gamma:g} every {part.step_size} epochs")
        else:
            milestones += part.milestones
            gamma = part.gamma
    if milestones:
        parts.append(f"x{gamma:g} after epochs {', '.join(map(str, milestones))}")
    return ", ".join(parts) or "constant"


def _rates(scales: Any) -> str:
    names = dict(neck_lr_scale="neck", hier_lr_scale="ancestors", class_lr_scale="class proxies")
    found = [f"{name} x{scales[key]:g}" for key, name in names.items() if key in scales]
    if "manifold_lr_scale" in scales:
        found.append(
            f"points x{scales.manifold_lr_scale:g}, without the first step; curvatures "
            f"{scales.curvature_lr:g}"
        )
    for key, value in (scales.get("lr_mult") or {}).items():
        found.append(f"{key.rpartition('.')[2]} x{value:g}")
    for key, options in (scales.get("custom_keys") or {}).items():
        if "lr_mult" in options:
            found.append(f"{key.rstrip('.')} x{options.lr_mult:g}")
    return ", ".join(found) or "none"


def _not_decayed(wrapper: Any, scales: Any) -> str | None:
    if wrapper.get("constructor") == "LanguageParamGroups":
        assert not scales.get("released")
        return "the table of words, all vectors and numbers"
    found = ["norms"] if scales.get("norm_decay_mult") == 0.0 else []
    keys = scales.get("custom_keys") or {}
    found += [key.rstrip(".") for key, options in keys.items() if options.get("decay_mult") == 0.0]
    return ", ".join(found) or None


def _data(cfg: Config) -> dict[str, Any]:
    loader = cfg.train_dataloader
    train = loader.dataset.get("transform") or {}
    test = (cfg.get("test_dataloader") or {}).get("dataset", {}).get("transform") or {}
    found: dict[str, Any] = {}
    if train:
        if "pad_crop" in train:
            assert (
                train.get("color_jitter") is None
                and not train.get("auto_augment")
                and not train.get("re_prob")
            )
            text = f"crops of {train.input_size} padded by {train.pad_crop}, mirrored"
            found["padding"] = {"constant": "zeros"}[train.pad_mode]
        elif train.get("auto_augment"):
            text = f"{train.auto_augment}, jitter {train.color_jitter:g}, erasing {train.re_prob:g}"
        else:
            assert train.color_jitter is None
            area = f"random crops of {train.input_size}, from {train.scale[0]:g} of the area"
            text = area if train.get("hflip", 0.5) == 0 else f"{area}, mirrored"
            if train.get("grayscale_prob"):
                text += f", grey with probability {train.grayscale_prob:g}"
        found["augmentation"] = text
        pixels = (train.get("mean", IMAGENET_DEFAULT_MEAN), train.get("std", IMAGENET_DEFAULT_STD))
        own = "0.5 for both" if set(pixels[0]) | set(pixels[1]) == {0.5} else str(pixels)
        known = pixels == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        found["mean and deviation of pixels"] = "ImageNet's" if known else own
    if test:
        crop = test.get("crop_pct") or 0.875
        found["test"] = (
            f"{test.input_size} pixels, {'whole image' if crop == 1 else f'crop {crop:g}'}"
        )
    batches = loader.get("batch_sampler")
    if batches and batches.type == "MPerClassBatchSampler":
        found["images of a class in a batch"] = str(batches.m)
    sampler = loader.get("sampler") or {}
    found["repeated augmentation"] = str(sampler.get("num_repeats", 1))
    if "length" in loader.dataset:
        found["context"] = f"{loader.dataset.length} tokens"
    boxes = loader.dataset.get("boxes")
    if boxes:
        found["boxes of an image"] = "one at random" if boxes == 1 else f"the first {boxes}"
    if "subreddits" in loader.dataset:
        found["captions that begin with their subreddit"] = f"{loader.dataset.subreddits:g}"
    found["training size"] = _training_size(loader.dataset.get("pipeline") or [], cfg.model)
    if "ignore_classes" in loader.dataset:
        found["classes of training"] = (
            f"{cfg.model.train_classes}, without {loader.dataset.ignore_classes}"
        )
    return found


def _training_size(pipeline: list[Any], model: Any) -> str | None:
    steps = {step.type: step for step in pipeline}
    resize = steps.get("RandomResize") or steps.get("Resize")
    if resize is None:
        return None
    text = " x ".join(map(str, resize.scale))
    if "ratio_range" in resize:
        text += f" times {resize.ratio_range[0]:g} to {resize.ratio_range[1]:g}"
    elif resize.get("keep_ratio") and "RandomCrop" in steps:
        text = f"short side {min(resize.scale)}"
    if "RandomCrop" in steps:
        side = steps["RandomCrop"].crop_size[0]
        text += f", crops of {side}"
        if model.get("resolution", side) != side:
            text += f" as {model.resolution}"
    return text


def _model(cfg: Config) -> dict[str, Any]:
    model, found = cfg.model, {}
    backbone = model.get("backbone") or {}
    if "mixup" in model:
        mix = model.mixup
        found["mixup, cutmix, label smoothing"] = (
            f"{mix.mixup_alpha:g}, {mix.cutmix_alpha:g}, {model.label_smoothing:g}"
        )
    if "drop_path_rate" in backbone:
        found["drop path"] = f"{backbone.drop_path_rate:g}"
    if isinstance(model.get("freeze"), str):
        found["frozen"] = model["freeze"]  # the attribute is a method of the config
    if model.get("freeze_bn"):
        found["batch norms"] = "frozen"
    if model.type == "MetricLearner":
        found["dimensions"] = str(model.neck.dim)
        if model.get("frozen"):
            assert model.frozen == ("patch_embed.*",)
            found["frozen"] = "patch embedding"
    if "hier_loss" in model:
        own = model.hier_loss
        found["loss"] = (
            f"Proxy-Anchor + {model.hier_weight:g} HIER, {own.num_proxies} ancestors, "
            f"{own.neighbours} neighbours, {own.draws} draws"
        )
    if model.get("neck", {}).get("learnable"):
        found["curvature"] = f"{model.neck.c:g} at first, learned"
    if model.type == "HyperbolicSegmentor":
        head = model.decode_head
        at = {"feature": "shrunk to the maps", "label": "of the image"}
        found["dimensions"] = str(head.dim)
        found["curvature"] = f"{head.c:g}"
        found["nodes of the tree"] = f"{head.num_classes}, all below the root"
        found["labels of the loss"] = at[head.loss_at]
    if "entail" in model:
        found["entailment"] = f"{model.entail:g}"
        assert "preprocess" not in model.clip
        pixels = clip_models.meru().normalisation()
        assert (
            tuple(pixels["mean"]) == IMAGENET_DEFAULT_MEAN
            and tuple(pixels["std"]) == IMAGENET_DEFAULT_STD
        )
        found["mean and deviation of pixels"] = "ImageNet's"
    if model.type == "RadialTuning":
        assert model.root == "text"
        found["root"] = "the empty text, learning along"
    if backbone.get("dense"):
        found.update(_dense(cfg))
    if "clip" in model and "train_classes" in model:
        found.update(_open_vocabulary(model))
    if model.type == "HyperCLIPSegmentor":
        found["test size"] = (
            f"short side 640, slides of {model.crop} on {model.slide} x {model.slide}"
        )
        if model.get("adapter"):
            found["curvatures of text and image"] = (
                f"{model.adapter.c_text:g}, {model.adapter.c_vision:g}"
            )
    return found


def _dense(cfg: Config) -> dict[str, Any]:
    """Of a segmenter or detector on Hi-Mapper's backbone."""
    model = cfg.model
    found = {
        "mapper": {"init": "dropped"}[model.backbone.dense],
        "maps": _numbers(model.backbone.get("out_indices")),
    }
    if "decode_head" in model:
        second = model.auxiliary_head
        weight = second.loss_decode.loss_weight
        found["channels of head and second head"] = (
            f"{model.decode_head.channels}, {second.channels} with weight {weight:g}"
        )
    if model.get("neck"):
        found["pyramid"] = f"{model.neck.type}, {model.neck.out_channels} channels"
    found["not decayed of the backbone"] = _spared(cfg)
    return found


def _spared(cfg: Config) -> str:
    """The kinds of parameters of the backbone that get no decay; a kind is treated alike."""
    assert cfg.optim_wrapper.constructor == "TimmParamGroups"
    options = {
        key: value for key, value in cfg.model.backbone.items() if key not in ("type", "init_cfg")
    }
    with torch.device("meta"):
        backbone = TimmBackbone(**options)
    groups = TimmParamGroups(cfg.optim_wrapper.to_dict()).groups(backbone)
    spared = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    kinds: dict[str, bool] = {}
    for name, parameter in backbone.named_parameters():
        own = id(parameter) in spared
        assert kinds.setdefault(_kind(name), own) == own, name
    order = ("norms", "positions", "class token", "biases", "weights")
    return ", ".join(kind for kind in order if kinds.get(kind))


def _kind(name: str) -> str:
    if "pos_embed" in name or "position_bias" in name:
        return "positions"
    if "cls_token" in name:
        return "class token"
    if "norm" in name:
        return "norms"
    return "biases" if name.endswith("bias") else "weights"


def _numbers(values: Any) -> str | None:
    return None if values is None else ", ".join(f"{value:g}" for value in values)


def _open_vocabulary(model: Any) -> dict[str, Any]:
    """Of HyperCLIP's models."""
    found = {"blocks for the pyramid": _numbers(model.get("hooks"))}
    if model.get("adapter") and "block" in model.adapter:
        found["what trains of CLIP"] = {"adapter": "the adapter"}[model.tune]
        official = model.adapter.get("official_twelve_layers")
        found["adapted image blocks"] = "the first 11 and the last" if official else "all"
    if "roi_head" in model:
        head = model.roi_head.bbox_head
        test = model.test_cfg.rcnn
        found["convolutions of proposals and boxes"] = (
            f"{model.rpn_head.num_convs}, {head.num_shared_convs}"
        )
        found["temperatures of head and CLIP"] = _numbers(
            (head.temperature, model.roi_head.clip_temperature)
        )
        found["weights of CLIP, base and novel"] = _numbers(
            (model.roi_head.alpha, model.roi_head.beta)
        )
        found["weight of the background"] = f"{head.background_weight:g}"
        found["least score, overlap of NMS"] = _numbers((test.score_thr, test.nms.iou_threshold))
    return found


SCALING = {
    "figures 3 to 7": {
        "features, widths": "1000, 10 to 100", "batch": "2048",
        "length": "20000 steps, warm-up 2000", "rate of W and b at m = 10": "0.01, 0.01",
        "loss": "mean squared error x1",
    },
    "figure 1": {
        "features, widths": "10240, 8 to 1024", "batch": "2048",
        "length": "20000 steps, warm-up 1000", "rate of W and b at m = 10": "0.0189, 0.2",
        "loss": "mean squared error x100",
    },
}  # fmt: skip


def _scaling(training: str) -> dict[str, str]:
    from superposition import experiments

    large = training == "figure 1"
    settings = experiments._LARGE if large else experiments._SMALL
    widths = experiments._LARGE_WIDTHS if large else experiments.WIDTHS
    return {
        "features, widths": f"{settings.n}, {widths[0]} to {widths[-1]}",
        "batch": str(settings.batch),
        "length": f"{settings.steps} steps, warm-up {settings.warmup}",
        "rate of W and b at m = 10": ", ".join(f"{rate:.3g}" for rate in settings.peaks(10)),
        "loss": f"mean squared error x{settings.loss_scale:g}",
    }


def _rows(
    training: str, settings: dict[str, str], here: dict[str, str], why: dict[str, str]
) -> list[str]:
    lines = []
    for place, (setting, value) in enumerate(settings.items()):
        same = here[setting] == value
        cells = [
            training if place == 0 else "",
            setting,
            value,
            "the same" if same else here[setting],
        ]
        lines.append(
            f"| {' | '.join(cells)} | {'' if same else why[setting]} |".replace("|  |", "| |")
        )
    return lines


def table(family: str) -> str:
    """The rows of a family's README, in Markdown."""
    lines = ["| training | setting | published | here | why |", "|---|---|---|---|---|"]
    if family == "scaling":
        for training, published in SCALING.items():
            lines += _rows(training, published, _scaling(training), {})
    else:
        for training, (name, published, why) in PUBLISHED[family].items():
            lines += _rows(training, published, recipe(name), why)
    return "\n".join(lines)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_readme_has_the_table_and_only_what_is_said_differs(family):
    for training, (name, published, why) in PUBLISHED[family].items():
        differ = {
            setting for setting, value in published.items() if recipe(name).get(setting) != value
        }
        assert differ == set(why), (training, differ ^ set(why))
        assert set(published) <= set(recipe(name)), training
    assert table(family) in (ROOT / family / "README.md").read_text()


def blocks_after_steps(**changes):
    """The distance from the identity of one of HyperCLIP's blocks after 20 steps in which no loss
    has a gradient."""
    from mmengine.optim import build_optim_wrapper

    wrapper = load_config("hyperclip-paper-vitb16_4xb1-80k_coco-stuff164k").optim_wrapper
    wrapper.optimizer.update(changes)
    model = nn.ModuleDict({"clip": nn.ModuleDict({"hyperclip": nn.Linear(8, 8, bias=False)})})
    blocks = model["clip"]["hyperclip"].weight
    nn.init.eye_(blocks)
    optimiser = build_optim_wrapper(model, wrapper)
    for _ in range(20):
        optimiser.update_params((0 * blocks).sum())
    return float((blocks.detach() - torch.eye(8)).abs().max())


def test_the_optimiser_of_the_papers_text_keeps_blocks_without_a_gradient():
    assert blocks_after_steps() == 0
    assert (
        blocks_after_steps(weight_decay=1e-4) > 1e-4
    )  # about the rate in every step, however small the decay


def test_scaling():
    assert {training: _scaling(training) for training in SCALING} == SCALING
    assert table("scaling") in (ROOT / "scaling/README.md").read_text()


def test_every_family_of_configs_has_one():
    others = {"hcformer": "test_hcformer_recipes.py", "fewshot": "tasks/test_few_shot_recipes.py"}
    folders = {path.parent.name for path in ROOT.glob("*/metafile.yml")} - {
        "baselines",
        "demo",
        "scaling",
    }
    assert folders == set(PUBLISHED) | set(others)
    assert all((Path(__file__).parent / file).is_file() for file in others.values())


if __name__ == "__main__":
    print(table(sys.argv[1]))
