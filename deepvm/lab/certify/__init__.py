"""``deepvm audit``: does anybody's training script resume correctly when it is killed?"""
