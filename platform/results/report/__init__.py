"""The privacy budget report: one document for a person who is not a cryptographer.

A pure function turns a run's agreed records into a document value; renderers turn that value into
HTML, PDF or plain data. `platform.agreement` prices the run's spending. Only two prices are made
here: one release alone, and a run with more colluding clients than planned.
"""
