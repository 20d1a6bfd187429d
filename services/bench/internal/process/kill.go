package process

import "fmt"

// Kill ends the program with SIGKILL and waits until it is gone. ErrEnded: it was gone before.
func (p *Program) Kill() error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}
