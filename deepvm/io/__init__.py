"""Read, write and lock the user's files, find the user's folders, and see what the machine has."""
