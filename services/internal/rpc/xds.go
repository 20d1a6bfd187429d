//go:build xds

package rpc

import (
	// Support for targets xds:///name, whose servers, policies and time limits come from a control
	// plane that GRPC_XDS_BOOTSTRAP names. It doubles the size of a program, so it needs a build
	// tag.
	_ "google.golang.org/grpc/xds"
)
