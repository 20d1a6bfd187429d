package rpc

import (
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
)

// tell tells a supervisor that waits for it, such as systemd with Type=notify, where the server stands: the socket's path comes in
// $NOTIFY_SOCKET. Where there is none nothing happens. A server that cannot tell goes on: only its supervisor is mistaken.
func tell(state string, logger hclog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("the supervisor was not told", "state", state, "error", err)
	}
}
