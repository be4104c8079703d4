"""What ManagedModule does to modules: walks their tensors, places them, gives them classes."""
