package monitor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
)

func TestAddresses(t *testing.T) {
	const own = "127.0.0.1:7071"
	for name, tc := range map[string]struct {
		is    monitor.Addresses
		wrong []string
	}{
		"none":                             {monitor.Addresses{Listen: own}, nil},
		"one each":                         {monitor.Addresses{own, "0.0.0.0:9071", "127.0.0.1:6060", ""}, nil},
		"the same port of another address": {monitor.Addresses{own, "127.0.0.2:7071", "", ""}, nil},
		"any free port":                    {monitor.Addresses{"127.0.0.1:0", "127.0.0.1:0", "[::1]:0", ""}, nil},
		"paths":                            {monitor.Addresses{"unix:/a", "unix:/b", "unix:/c", ""}, nil},
		"that of the service":              {monitor.Addresses{own, own, own, ""}, []string{"--metrics-listen", "--pprof-listen", "--listen"}},
		"the service is everywhere":        {monitor.Addresses{":7071", "127.0.0.1:7071", "", ""}, []string{"--metrics-listen"}},
		"metrics on every address":         {monitor.Addresses{own, "[::]:7071", "", ""}, []string{"--metrics-listen"}},
		"one path":                         {monitor.Addresses{"unix:/a", "unix:/a", "", ""}, []string{"--metrics-listen"}},
		"profiles on the metrics' port":    {monitor.Addresses{own, "127.0.0.1:9071", "127.0.0.1:9071", ""}, []string{"--pprof-listen"}},
		"no port":                          {monitor.Addresses{own, "127.0.0.1", "9071", ""}, []string{"--metrics-listen", "--pprof-listen"}},
		"an empty port":                    {monitor.Addresses{own, "127.0.0.1:", "", ""}, []string{"--metrics-listen"}},
		"profiles for everybody":           {monitor.Addresses{own, "", "0.0.0.0:6060", ""}, []string{"--pprof-listen", "loopback"}},
		"profiles for the network":         {monitor.Addresses{own, "", "10.0.0.1:6060", ""}, []string{"--pprof-listen", "loopback"}},
		"profiles at a name":               {monitor.Addresses{own, "", "localhost:6060", ""}, []string{"--pprof-listen", "loopback"}},
		"a console":                        {monitor.Addresses{own, "0.0.0.0:9071", "127.0.0.1:6060", "127.0.0.1:8070"}, nil},
		"a console at the service":         {monitor.Addresses{own, "", "", own}, []string{"--console-listen", "is --listen"}},
		"a console on the metrics' port":   {monitor.Addresses{own, "127.0.0.1:9071", "", "127.0.0.1:9071"}, []string{"--console-listen", "is --metrics-listen"}},
		"a console among the profiles":     {monitor.Addresses{own, "", "127.0.0.1:6060", "127.0.0.1:6060"}, []string{"--console-listen", "is --pprof-listen"}},
		"a console without a port":         {monitor.Addresses{own, "", "", "localhost"}, []string{"--console-listen"}},
		"profiles at a mapped address":     {monitor.Addresses{own, "", "[::ffff:127.0.0.1]:6060", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.is.Validate()
			if tc.wrong == nil {
				require.NoError(t, err)
			}
			for _, word := range tc.wrong {
				require.ErrorContains(t, err, word)
			}
		})
	}
}
