"""Before deployment: will this model fit, and with which flags and limits?"""
