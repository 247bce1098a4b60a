"""Checkpoints of other trainers, to and from state folders (doc/bring-your-run.md).

Files come from outside. A pickle is read by torch.load(weights_only=True), or by an unpickler with a list of the names
that it may use; nothing else is. What is not known is refused by name.
"""
