"""Plans as files of other tools, such as SkyPilot: a class and its templates for each."""
