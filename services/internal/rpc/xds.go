//go:build xds

package rpc

import (
	// Targets xds:///name, whose servers, policies and time limits a control plane tells: GRPC_XDS_BOOTSTRAP names it. It is in no
	// program that does not ask for it, since it is as large as the rest.
	_ "google.golang.org/grpc/xds"
)
