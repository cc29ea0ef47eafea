"""A world of drawn shapes with labels, masks, boxes and captions: data that many tests share."""
