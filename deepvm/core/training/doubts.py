"""How those doubts about a speed begin that reports group, name once or leave out."""

NO_FIT = "it cannot be trained so"
UNPUBLISHED = "no published run of "
PLAIN = "plain PyTorch is counted"
