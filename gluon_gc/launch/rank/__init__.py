"""The rank of this process, from the variables of any launcher."""
