"""The fields that manifests may have: KubeRay's from its API reference (v1.5), the rest from Kubernetes' core API.

A value is the type of the field's value; None is a plain value, a list holds the type of its items, a dict is a map.
Only the types that the manifests use are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PLAIN = None
Kind = str | list[str] | None

TYPES: dict[str, dict[str, Kind]] = {
    "RayJob": {"apiVersion": PLAIN, "kind": PLAIN, "metadata": "ObjectMeta", "spec": "RayJobSpec"},
    "RayJobSpec": {
        **dict.fromkeys(
            ("activeDeadlineSeconds", "backoffLimit", "managedBy", "entrypoint", "runtimeEnvYAML", "jobId")
        ),
        **dict.fromkeys(("submissionMode", "entrypointResources", "entrypointNumCpus", "entrypointNumGpus")),
        **dict.fromkeys(("ttlSecondsAfterFinished", "shutdownAfterJobFinishes", "suspend")),
        "rayClusterSpec": "RayClusterSpec",
        "submitterPodTemplate": "PodTemplateSpec",
    },
    "RayClusterSpec": {
        **dict.fromkeys(("suspend", "managedBy", "enableInTreeAutoscaling", "rayVersion")),
        "authOptions": "AuthOptions",
        "headGroupSpec": "HeadGroupSpec",
        "workerGroupSpecs": ["WorkerGroupSpec"],
    },
    "AuthOptions": {"mode": PLAIN},
    "HeadGroupSpec": {"template": "PodTemplateSpec", "rayStartParams": "map", "serviceType": PLAIN},
    "WorkerGroupSpec": {
        **dict.fromkeys(("suspend", "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts")),
        "rayStartParams": "map",
        "template": "PodTemplateSpec",
    },
    "PodTemplateSpec": {"metadata": "ObjectMeta", "spec": "PodSpec"},
    "ObjectMeta": {"name": PLAIN, "namespace": PLAIN, "labels": "map", "annotations": "map"},
    "PodSpec": {
        "affinity": "Affinity",
        "containers": ["Container"],
        "nodeSelector": "map",
        "resourceClaims": ["PodResourceClaim"],
        "terminationGracePeriodSeconds": PLAIN,
        "tolerations": ["Toleration"],
        "volumes": ["Volume"],
    },
    "Container": {
        **dict.fromkeys(("name", "image", "imagePullPolicy", "workingDir")),
        "args": ["plain"],
        "command": ["plain"],
        "env": ["EnvVar"],
        "resources": "ResourceRequirements",
        "securityContext": "SecurityContext",
        "volumeMounts": ["VolumeMount"],
    },
    "EnvVar": {"name": PLAIN, "value": PLAIN, "valueFrom": "EnvVarSource"},
    "EnvVarSource": {"fieldRef": "ObjectFieldSelector"},
    "ObjectFieldSelector": {"apiVersion": PLAIN, "fieldPath": PLAIN},
    "ResourceRequirements": {"requests": "map", "limits": "map", "claims": ["ResourceClaim"]},
    "ResourceClaim": {"name": PLAIN, "request": PLAIN},
    "PodResourceClaim": {"name": PLAIN, "resourceClaimName": PLAIN, "resourceClaimTemplateName": PLAIN},
    "SecurityContext": {"capabilities": "Capabilities", "privileged": PLAIN, "runAsUser": PLAIN},
    "Capabilities": {"add": ["plain"], "drop": ["plain"]},
    "VolumeMount": {"name": PLAIN, "mountPath": PLAIN, "subPath": PLAIN, "readOnly": PLAIN},
    "Volume": {"name": PLAIN, "persistentVolumeClaim": "ClaimVolume", "emptyDir": "EmptyDir"},
    "ClaimVolume": {"claimName": PLAIN, "readOnly": PLAIN},
    "EmptyDir": {"medium": PLAIN, "sizeLimit": PLAIN},
    "Toleration": {**dict.fromkeys(("key", "operator", "value", "effect", "tolerationSeconds"))},
    "Affinity": {"podAffinity": "PodAffinity", "podAntiAffinity": "PodAffinity"},
    "PodAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["PodAffinityTerm"]},
    "PodAffinityTerm": {"topologyKey": PLAIN, "labelSelector": "LabelSelector", "namespaces": ["plain"]},
    "LabelSelector": {"matchLabels": "map"},
    # NVIDIA's DRA driver for GPUs.
    "ComputeDomain": {"apiVersion": PLAIN, "kind": PLAIN, "metadata": "ObjectMeta", "spec": "ComputeDomainSpec"},
    "ComputeDomainSpec": {"numNodes": PLAIN, "channel": "ComputeDomainChannel"},
    "ComputeDomainChannel": {"resourceClaimTemplate": "ObjectMeta"},
}


def wrong(value: Any, kind: Kind, at: str) -> Iterator[str]:
    """Every place of a manifest that its type does not have."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        for place, item in enumerate(value):
            yield from wrong(item, kind[0], f"{at}[{place}]")
    elif kind in (None, "plain"):
        if isinstance(value, dict | list):
            yield f"{at} is no plain value"
    elif not isinstance(value, dict):
        yield f"{at} is no mapping"
    elif kind == "map":
        yield from (f"{at}.{key} is no text" for key, item in value.items() if not isinstance(item, str))
    else:
        for key, item in value.items():
            if key not in TYPES[str(kind)]:
                yield f"{at}.{key} is no field of {kind}"
            else:
                yield from wrong(item, TYPES[str(kind)][key], f"{at}.{key}")
