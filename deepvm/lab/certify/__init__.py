"""``deepvm audit``: does a training script resume correctly when it is killed?"""
