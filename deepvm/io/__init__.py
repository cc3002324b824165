"""Read and write the user's files, find the user's folders, and see what the machine has.

Locks are with what they protect: the catalog's cache and measured tables, a command's output, a checkpoint folder.
"""
