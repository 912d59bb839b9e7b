"""One CloudWatch dashboard over any set of endpoints."""

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from constructs_lib.dr_endpoint import DREndpoint
from constructs_lib.rules import refuse


class DREndpointDashboard(Construct):
    """Requests, errors, latency and capacity of each endpoint, and all their alarms.

        DREndpointDashboard(self, "Dashboard", endpoints=[serverless, on_lambda])

    Args:
        endpoints: of any kind, at least one; each gets a row.
        dashboard_name: letters, digits, hyphens and underscores.

    Defaults: a name from CloudFormation.

    Defines: a dashboard. The first three of an account are free.

    Raises:
        ValidationError: there is no endpoint, or one comes twice.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoints: Sequence[DREndpoint],
        dashboard_name: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        faults = []
        if not endpoints:
            faults.append("endpoints must name at least one")
        names = [endpoint.endpoint_name for endpoint in endpoints]
        faults += [
            f"endpoints must name each one once; {name} comes {names.count(name)} times"
            for name in sorted(set(names))
            if names.count(name) > 1
        ]
        refuse(f"DREndpointDashboard {self.node.path}", faults)
        self.dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=dashboard_name)
        alarms = [alarm for endpoint in endpoints for alarm in endpoint.alarms_if_any]
        if alarms:
            self.dashboard.add_widgets(
                cloudwatch.AlarmStatusWidget(title="alarms", alarms=alarms, width=24)
            )
        for endpoint in endpoints:
            self.dashboard.add_widgets(*endpoint.dashboard_widgets())
