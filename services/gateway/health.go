package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/app"
)

// maxProbe bounds the answer of a probe that is printed.
const maxProbe = 256

// healthCommand returns the command that asks a gateway for its readiness: the health check of a
// container image that has no other program.
func healthCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "health", Short: "Exits 0 if a gateway says that it is ready", Args: cobra.NoArgs}
	address := cmd.Flags().String("target", "127.0.0.1:8080", "address of the gateway: host:port or unix:PATH")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "longest wait for the answer")
	authorities := cmd.Flags().String("tls-ca", "", "file of the authorities of the gateway, in PEM; turns TLS on (default: plaintext)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		url := "http://" + *address
		if path, ok := strings.CutPrefix(*address, "unix:"); ok {
			url = "http://gateway"
			transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			}
		}
		if *authorities != "" {
			pool, err := readAuthorities(*authorities)
			if err != nil {
				return app.Usage(err)
			}
			url = "https" + strings.TrimPrefix(url, "http")
			transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
		}
		return checkReady(ctx, &http.Client{Transport: transport}, url+"/readyz")
	}
	return cmd
}

func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-ca %s: has no certificate in PEM", path)
	}
	return pool, nil
}

// checkReady returns nil if the probe at url says that the gateway is ready.
func checkReady(ctx context.Context, client *http.Client, url string) (err error) {
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return app.Usage(err)
	}
	out, err := client.Do(in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(out.Body, maxProbe))
	if err != nil {
		return err
	}
	if out.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway is not ready: %s", strings.TrimSpace(string(text)))
	}
	return nil
}
