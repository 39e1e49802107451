"""The backend over Horovod: process sets, collectives, and the messages that they carry."""
