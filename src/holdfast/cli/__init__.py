"""The command line: what a person sees of runs, outside of the jobs themselves."""
