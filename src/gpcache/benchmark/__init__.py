"""The paper's experiments: data sets, protocols, tables and figures."""
