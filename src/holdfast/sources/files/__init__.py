"""Objects of any kind as an input that workers read themselves."""
