"""Models of torchvision's, small and with random weights, for where that is installed."""

import torch

LIBRARIES = []  # as long as they are there, what they declare is


def import_torchvision():
    """Its models, which need no operators of its own. But it wants these declared, also where its library, which is
    linked to CUDA's, does not load."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)
        import torchvision
    return torchvision.models


def zoo():
    """Families as families() has them, and of those that are not there, why."""
    names = ("shuffle_net", "swin_transformer")
    try:
        models = import_torchvision()
    except (ImportError, RuntimeError) as e:
        return {}, {name: f"torchvision is not there: {e}" for name in names}
    shuffle = models.ShuffleNetV2([2, 2, 2], [4, 8, 8, 8, 8], num_classes=3)
    swin = models.SwinTransformer(
        [2, 2], embed_dim=4, depths=[2, 2], num_heads=[1, 2], window_size=[2, 2], mlp_ratio=2.0, num_classes=3
    )
    image = torch.randn
    return {
        "shuffle_net": (shuffle.eval(), lambda: (image(1, 3, 32, 32),), None),
        "swin_transformer": (swin.eval(), lambda: (image(1, 3, 8, 8),), None),
    }, {}
