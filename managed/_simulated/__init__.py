"""What torch.sim offers: simulated devices as a device module of torch's."""
