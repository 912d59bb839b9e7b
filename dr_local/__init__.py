"""A local AWS: the control plane that `cdk deploy` talks to, and the SageMaker runtime.

Nothing here reaches the network: every server binds the loopback interface, and every client
refuses an address that is not on it.

    >>> from dr_local.lifecycle import running
    >>> with running() as local:
    ...     local.endpoint_url
    'http://localhost:…'
"""
