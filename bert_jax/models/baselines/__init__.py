"""Models of the baselines that encoders are compared with: BiLSTMs, features of a frozen encoder, GPT."""
