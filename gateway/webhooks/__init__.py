"""Webhooks: messages that are due go out by POST.

settings    a webhook as the meta server reveals it, and the URLs that it may post to
addresses   the addresses that may be connected to
signing     the headers of a request, signed as Standard Webhooks 1.0.0
pace        how many requests an endpoint gets at a time
endpoint    one webhook: a receiver, and what its endpoint answers
following   the webhooks of a gateway, as an operator changes them
"""
