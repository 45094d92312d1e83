"""The gradient engine: what each sample says about each weight. It knows neither importance nor directions."""
