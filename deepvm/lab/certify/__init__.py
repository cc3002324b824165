"""``deepvm audit``: does anybody's training script come back right when it is killed?"""
