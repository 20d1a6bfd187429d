package httpapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	s := start(t, nil, body)
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://a.example"}, {"Origin", "null"}, {"Origin", s.url}} {
		out, text := s.call(t, http.MethodPost, "/do", `{"text":"a"}`, headers...)
		require.Equal(t, http.StatusForbidden, out.StatusCode, text)
		require.Empty(t, out.Header.Get("Access-Control-Allow-Origin"))
	}
	out, _ := s.call(t, http.MethodOptions, "/do", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
	require.Empty(t, out.Header.Get("Access-Control-Allow-Origin"))
	out, _ = s.call(t, http.MethodPost, "/do", `{"text":"a"}`)
	require.Equal(t, http.StatusOK, out.StatusCode, "what is no page sends no origin")
}

func TestListedOriginsMayMakeRequests(t *testing.T) {
	for _, listed := range []string{"https://a.example", "*"} {
		s := start(t, func(c *httpapi.Config) { c.Origins = []string{listed} }, body)
		out, text := s.call(t, http.MethodPost, "/do", `{"text":"a"}`, "Origin", "https://a.example", "Sec-Fetch-Site", "cross-site")
		require.Equal(t, http.StatusOK, out.StatusCode, text)
		require.Equal(t, "https://a.example", out.Header.Get("Access-Control-Allow-Origin"))
		require.Equal(t, "Origin", out.Header.Get("Vary"))
		require.Contains(t, out.Header.Get("Access-Control-Expose-Headers"), "X-Request-Id")
		out, _ = s.call(t, http.MethodOptions, "/do", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "authorization,x-stainless-lang")
		require.Equal(t, http.StatusNoContent, out.StatusCode)
		require.Equal(t, "authorization,x-stainless-lang", out.Header.Get("Access-Control-Allow-Headers"))
		require.Contains(t, out.Header.Get("Access-Control-Allow-Methods"), "POST")
		out, _ = s.call(t, http.MethodPost, "/do", `{"text":"a"}`, "Origin", "https://b.example")
		require.Equal(t, listed == "*", out.StatusCode == http.StatusOK)
	}
}

func TestTLSRequiresAllowedCertificates(t *testing.T) {
	ca := certstest.New(t)
	server := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	flags := transport.Flags{Cert: server.Cert, Key: server.Key, ClientCA: ca.File, ClientSANs: []string{"dns:app"}}
	s := start(t, func(c *httpapi.Config) {
		var err error
		c.TLS, c.Refuse, err = flags.HTTP(rpctest.Logger(t))
		require.NoError(t, err)
	}, body)
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(ca.File)
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(pem))
	for name, want := range map[string]int{"dns:app": http.StatusOK, "dns:other": http.StatusForbidden} {
		own := certstest.Save(t, ca.Issue(t, name))
		pair, err := tls.LoadX509KeyPair(own.Cert, own.Key)
		require.NoError(t, err)
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}}}
		in, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.Replace(s.url, "http:", "https:", 1)+"/do", strings.NewReader(`{"text":"a"}`))
		require.NoError(t, err)
		out, err := client.Do(in)
		require.NoError(t, err)
		require.NoError(t, out.Body.Close())
		require.Equal(t, want, out.StatusCode)
		require.Equal(t, 2, out.ProtoMajor)
		if got := <-s.ended; want == http.StatusForbidden {
			require.Equal(t, reason.CallerNotAllowed, got.reason)
		}
	}
}

func TestConnectionsOfAnAddressAreBounded(t *testing.T) {
	s := start(t, func(c *httpapi.Config) { c.MaxConnectionsPerAddress = 1 }, body)
	var d net.Dialer
	first, err := d.DialContext(context.Background(), "tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	_, err = s.do(t, false, http.MethodPost, "/do", nil)
	require.Error(t, err)
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		out, err := s.do(t, false, http.MethodPost, "/do", strings.NewReader(`{"text":"a"}`))
		return err == nil && out.Body.Close() == nil && out.StatusCode == http.StatusOK
	}, hang, hang/6000)
}

func TestAppendEventSplitsLines(t *testing.T) {
	require.Equal(t, "data: a\n\n", string(httpapi.AppendEvent(nil, "", []byte("a"))))
	require.Equal(t, "event: done\ndata: a\ndata: \ndata: b\n\n", string(httpapi.AppendEvent(nil, "done", []byte("a\n\nb"))))
}

func TestAppendStringIsJSON(t *testing.T) {
	for _, text := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é漢😀\u2028", "a\"b"} {
		var got string
		require.NoError(t, json.Unmarshal(httpapi.AppendString(nil, text), &got))
		require.Equal(t, text, got)
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\x01é")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "")
		var got string
		if err := json.Unmarshal(httpapi.AppendString(nil, text), &got); err != nil || got != text {
			t.Fatalf("%q is read as %q: %v", text, got, err)
		}
	})
}
