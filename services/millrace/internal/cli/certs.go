package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

const (
	// authorityName is the file name of the authority, which no leaf may have.
	authorityName = "ca"
	// authorityTime is how long an authority is valid: development does not renew it.
	authorityTime = 10 * 365 * 24 * time.Hour
	// clockSkew is how far a certificate is valid before it is made: the clocks of machines differ.
	clockSkew = time.Hour
)

// leafName matches valid names of a leaf: the name becomes a file's name and a DNS name.
var leafName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// certs makes certificates for development.
func (a *app) certs() *cobra.Command {
	var dir string
	var sans []string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "certs NAME...",
		Short: "Make an authority and certificates for development",
		Long: "Makes DIR/NAME.pem and DIR/NAME-key.pem for each NAME, under the authority DIR/ca.pem, which is made if it is not there.\n" +
			"Each certificate is for serving and for calling, has the names dns:NAME, dns:localhost, ip:127.0.0.1, ip:::1 and those of\n" +
			"--san, and an ECDSA key on P-256. No file is replaced, and all are readable by you alone. Who has DIR/ca-key.pem can make\n" +
			"certificates that your servers trust: this is for development and tests. No server is needed.",
		Example: "  millrace certs scheduler worker client\n  millrace certs worker-7 --san ip:10.0.0.7,uri:spiffe://example.org/worker",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if valid <= 0 || valid > authorityTime {
				return failure.Usagef("--valid is %v: must be above 0 and at most %v", valid, authorityTime)
			}
			more, err := transport.ParseSANs(sans)
			if err != nil {
				return failure.Usagef("--san: %w", err)
			}
			for i, name := range names {
				if !leafName.MatchString(name) || name == authorityName || strings.HasSuffix(name, "-key") || slices.Contains(names[:i], name) {
					return failure.Usagef("%q: want names such as worker or worker-7.example, each once, of small letters, digits, dots and dashes, none of them ca or with -key at its end", name)
				}
			}
			files, err := makeCertificates(dir, names, more, time.Now().Add(-clockSkew), valid+clockSkew)
			if err != nil {
				return err
			}
			for _, f := range files {
				fmt.Fprintln(a.Out, f.path)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "certs", "folder of the certificates, made if it is not there")
	cmd.Flags().StringSliceVar(&sans, "san", nil, "further names of each certificate: dns:NAME, uri:URI or ip:ADDRESS, separated by commas")
	cmd.Flags().DurationVar(&valid, "valid", 90*24*time.Hour, "how long the certificates are valid (default: 2160h, 90 days)")
	cmd.Flags().Lookup("valid").DefValue = "0s" // pflag would print 2160h0m0s
	return cmd
}

// certificateFile is a file to be written.
type certificateFile struct {
	path string
	text []byte
}

// makeCertificates writes leaves, and their authority if it is not there; all of the files or none.
func makeCertificates(dir string, names []string, more []transport.SAN, from time.Time, valid time.Duration) ([]certificateFile, error) {
	var files []certificateFile
	add := func(name string, pair certs.Pair) {
		cert, key := pairFiles(dir, name)
		files = append(files, certificateFile{cert, pair.Cert}, certificateFile{key, pair.Key})
	}
	authority, err := readAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if authority, err = certs.New("millrace development authority", from, from.Add(authorityTime+clockSkew)); err == nil {
			add(authorityName, authority.Pair)
		}
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		own, err := transport.ParseSANs([]string{"dns:" + name, "dns:localhost", "ip:127.0.0.1", "ip:::1"})
		if err != nil {
			return nil, err
		}
		pair, err := authority.Issue(name, append(own, more...), from, from.Add(valid))
		if err != nil {
			return nil, err
		}
		add(name, pair)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for i, f := range files {
		if err := writeNew(f.path, f.text, "remove it with its pair, or choose another name or --dir"); err != nil {
			for _, made := range files[:i] {
				err = errors.Join(err, os.Remove(made.path))
			}
			return nil, err
		}
	}
	return files, nil
}

// readAuthority reads the authority of a folder, or returns fs.ErrNotExist.
func readAuthority(dir string) (*certs.Authority, error) {
	certFile, keyFile := pairFiles(dir, authorityName)
	cert, certErr := os.ReadFile(certFile)
	key, keyErr := os.ReadFile(keyFile)
	noCert, noKey := errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist)
	switch {
	case noCert && noKey:
		return nil, fs.ErrNotExist
	case noCert != noKey:
		return nil, fmt.Errorf("of %s and %s one is missing: put it back, or choose another folder with --dir", certFile, keyFile)
	case certErr != nil || keyErr != nil:
		return nil, errors.Join(certErr, keyErr)
	}
	authority, err := certs.Load(certs.Pair{Cert: cert, Key: key})
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	return authority, nil
}

// pairFiles are the files of a certificate and its key.
func pairFiles(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

// writeNew writes a file that was not there, for its owner alone.
func writeNew(path string, text []byte, instead string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: %s", path, instead)
	}
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}
