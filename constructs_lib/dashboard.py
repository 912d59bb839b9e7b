"""One CloudWatch dashboard over any set of endpoints."""

import re
from collections.abc import Sequence
from typing import Final

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from constructs_lib.dr_endpoint import DREndpoint
from constructs_lib.kinds import TEXT, Kind, kind_faults
from constructs_lib.rules import refuse
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import is_token

# Of one widget: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
_MOST_ALARMS: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_DASHBOARD_KINDS: Final = {
    "endpoints": Kind(
        words="a list of endpoints of this library",
        types=(DREndpoint,),
        many=True,
        optional=False,
    ),
    "dashboard_name": TEXT,
}


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
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        refuse(
            f"DREndpointDashboard {self.node.path}",
            kind_faults(
                {"endpoints": endpoints, "dashboard_name": dashboard_name}, _DASHBOARD_KINDS
            ),
        )
        faults = []
        if not endpoints:
            faults.append("endpoints must name at least one")
        paths = [endpoint.node.path for endpoint in endpoints]
        faults += [
            f"endpoints must name each one once; {path} comes {paths.count(path)} times"
            for path in sorted(set(paths))
            if paths.count(path) > 1
        ]
        if (
            dashboard_name is not None
            and not is_token(dashboard_name)
            and not _NAME.fullmatch(dashboard_name)
        ):
            faults.append(
                "dashboard_name must be 1 to 255 letters, digits, hyphens and underscores; got "
                f"{dashboard_name!r} (https://docs.aws.amazon.com/AmazonCloudWatch/latest/"
                "APIReference/API_PutDashboard.html)"
            )
        refuse(f"DREndpointDashboard {self.node.path}", faults)
        self.dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=dashboard_name)
        alarms = [alarm for endpoint in endpoints for alarm in endpoint.alarms_if_any]
        for first in range(0, len(alarms), _MOST_ALARMS):
            shown = alarms[first : first + _MOST_ALARMS]
            self.dashboard.add_widgets(
                cloudwatch.AlarmStatusWidget(title="alarms", alarms=shown, width=24)
            )
        for endpoint in endpoints:
            self.dashboard.add_widgets(*endpoint.dashboard_widgets())
