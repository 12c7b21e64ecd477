"""A store of KV blocks that all instances of a cluster share: memory and disks of many nodes behind one master."""
