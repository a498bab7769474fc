"""Models of other sizes that are made from a trained one: smaller by trimming, larger by growth."""
