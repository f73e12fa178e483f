// Package proc runs server programs for tests, in folders of their own, and sees to it that
// neither outlives the program that started them.
package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Scope is the private folder of one server. A process belongs to the scope if its
// working folder lies inside: every process of a server is started there and none
// leaves it (Postgres' children stay in the data folder). So all of them can be found,
// whatever became of their parents, and nothing else can be hit by mistake.
type Scope struct {
	Dir    string
	reaper *exec.Cmd
	pipe   io.WriteCloser // the reaper acts when it is closed without a word
	mounts []string
}

// The reaper outlives us: it waits at the pipe's end. A parent's death signal would not
// do, since it is bound to the thread that forked, is lost over a change of user, and
// removes no folder. Postgres gets the chance to give back its shared memory (QUIT is
// its immediate shutdown) before everything is killed.
const reaperScript = `
trap '' HUP INT TERM
read -r word && exit 0
signal_all() {
	for p in /proc/[0-9]*; do
		case "$(readlink "$p/cwd" 2>/dev/null)/" in
		"$dir"/*) case "$(readlink "$p/exe" 2>/dev/null)" in
			*/postgres*|*/java*|*/walrelay*|*/redis*) kill "$1" "${p#/proc/}" 2>/dev/null ;;
			esac ;;
		esac
	done
}
dir=$1
signal_all -CONT
signal_all -QUIT
sleep 0.5
for try in 1 2 3 4 5; do
	signal_all -KILL
	awk -v d="$dir/" 'index($2, d) == 1 { print $2 }' /proc/mounts | xargs -r umount 2>/dev/null
	[ -n "$keep" ] && exit 0
	rm -rf -- "$dir" 2>/dev/null && exit 0
	sleep 0.3
done
`

// NewScope makes a temporary folder, whose name contains name.
func NewScope(name string) (*Scope, error) {
	dir, err := os.MkdirTemp("", "walrelay-e2e-"+name+"-")
	if err != nil {
		return nil, err
	}
	// The servers may run as another user, who has to pass through.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	s := &Scope{Dir: dir}
	s.reaper = exec.Command("/bin/sh", "-c", reaperScript, "walrelay-e2e-reaper", dir)
	s.reaper.Dir = "/"
	s.reaper.Env = append(os.Environ(), "keep="+os.Getenv("WALRELAY_E2E_KEEP"))
	s.reaper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if s.pipe, err = s.reaper.StdinPipe(); err == nil {
		err = s.reaper.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start the reaper of %s: %w", dir, err)
	}
	return s, nil
}

// Mkdir makes a folder of the scope, on a tmpfs of its own where a size is given.
func (s *Scope) Mkdir(dir, tmpfs string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil || tmpfs == "" {
		return err
	}
	if err := syscall.Mount("walrelay-e2e", dir, "tmpfs", 0, "mode=0700,size="+tmpfs); err != nil {
		return fmt.Errorf("mount a tmpfs (root only): %w", err)
	}
	s.mounts = append(s.mounts, dir)
	return nil
}

// Close kills what is left, removes the folder and dismisses the reaper.
func (s *Scope) Close() error {
	err := s.Kill()
	for _, dir := range s.mounts { // a killed JVM lets go of its files a moment after it is a zombie
		err = errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH))
	}
	if os.Getenv("WALRELAY_E2E_KEEP") == "" {
		err = errors.Join(err, os.RemoveAll(s.Dir))
	}
	io.WriteString(s.pipe, "done\n")
	s.pipe.Close()
	s.reaper.Wait()
	return err
}

// Kill sends SIGKILL to every process of the scope and returns when none is left.
func (s *Scope) Kill() error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		pids := s.pids()
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s survive SIGKILL", pids, s.Dir)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Signal sends sig to every process of the scope.
func (s *Scope) Signal(sig syscall.Signal) {
	for _, pid := range s.pids() {
		syscall.Kill(pid, sig)
	}
}

func (s *Scope) pids() []int {
	var pids []int
	cwds, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range cwds {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd+"/", s.Dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil && pid != os.Getpid() && !isShell(pid) && !isZombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isShell spares somebody who looks around in a server's folder.
func isShell(pid int) bool {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	switch filepath.Base(exe) {
	case "sh", "bash", "dash", "zsh", "fish", "busybox":
		return true
	}
	return false
}

func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
