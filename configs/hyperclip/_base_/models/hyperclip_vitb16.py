# HyperCLIP on OpenAI's ViT-B/16: 384 x 384 pixels, 24 x 24 patches; 5.9 M parameters of CLIP train.
model = dict(
    type="HyperCLIPSegmentor",
    clip=dict(name="ViT-B-16", pretrained="openai", force_quick_gelu=True),
    adapter=dict(block=128, c_text=0.01, c_vision=0.01),
    tune="adapter",
    resolution=384,
    crop=384,
    slide=640,
    inference="slide",
)
