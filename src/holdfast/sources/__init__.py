"""Where rows come from, when workers read them themselves."""
