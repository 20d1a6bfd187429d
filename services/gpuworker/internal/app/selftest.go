package app

import (
	"errors"
	"io"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/selfcheck"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
)

// SelfTest checks the configured device against the reference and writes one table to w. The error is
// selfcheck.ErrFailed when a check fails.
func SelfTest(c *config.Config, w io.Writer, logger hclog.Logger) (err error) {
	device, err := c.Device.Open(logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	info, err := device.Info()
	if err != nil {
		return err
	}
	rows, err := selfcheck.Run(device)
	if rows == nil {
		return err
	}
	return errors.Join(err, selfcheck.Print(w, info, rows))
}
