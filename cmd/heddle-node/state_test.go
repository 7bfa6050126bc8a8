package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
)

// What an earlier run left, on disk and in the kernel, is used as far as it can
// be right and no further, while the control plane cannot be asked.
func TestWhatIsLeft(t *testing.T) {
	s := newScene(t)
	const gone = "192.0.2.99:6443"
	api := service(apiVIP, gone)
	api.Services[0].Service.Namespace, api.Services[0].Service.Name, api.Services[0].Service.Ports[0].Port = "default", "kubernetes", 443
	s.plane.tell(&pb.NodeServices{Services: append(service(vip, "192.0.2.2:8080").Services, api.Services...)})
	s.api.publish(s.plane.ca.RootsPEM())
	s.start()
	s.until("ready", s.isReady)
	s.until("what the control plane tells of the API server counts alone", func() bool {
		_, body := s.get("/debug/services")
		return strings.Contains(body, gone) && !strings.Contains(body, "192.0.2.2:6443")
	})
	file := filepath.Join(s.state, "services.state")
	s.until("it is on disk", func() bool { _, err := os.Stat(file); return err == nil })
	apiReached := func() bool {
		c, err := s.dial(apiVIP + ":443")
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	said := func(what string) func() bool { return func() bool { return strings.Contains(s.log.String(), what) } }

	s.kill()
	s.stopPlane()
	s.start()
	s.until("the API server of today is reached, though another is on disk", apiReached)
	if got, err := s.reach(); err != nil || got != "8080" {
		t.Errorf("a Service that is on disk: %q, %v", got, err)
	}

	s.kill()
	if err := os.WriteFile(file, []byte("heddle-node-2 damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.until("the damage is told of", said("it is no state file"))
	s.until("rules are written", said("wrote rules"))
	s.until("the API server is reached", apiReached)
	if got, err := s.reach(); err != nil || got != "8080" {
		t.Errorf("a Service that is in the kernel alone: %q, %v", got, err)
	}
	if s.isReady() {
		t.Error("ready without the control plane's word")
	}
	s.servePlane()
	s.until("ready", s.isReady)
	s.until("it is on disk again", func() bool { b, err := os.ReadFile(file); return err == nil && len(b) > 100 })

	s.kill()
	s.stopPlane()
	_, ca := serving(t, apiVIP)
	if err := os.WriteFile(filepath.Join(s.dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.until("the other cluster is told of", said("it is of another cluster"))
	s.until("the API server is reached and no Service of another cluster", func() bool {
		_, err := s.reach()
		return err != nil && apiReached()
	})
}

// The control plane's authority is restored to what it was before a rotation,
// of which the stream told and nothing that is published: the published roots
// are taken when no connection comes about. Then it is made anew, and published.
func TestAuthorityComesBack(t *testing.T) {
	s := newScene(t)
	s.plane.told = pki.New(t, "demo.test")
	s.api.publish(s.plane.ca.RootsPEM())
	s.start()
	s.until("ready", s.isReady)
	connected := func() bool {
		_, body := s.get("/metrics")
		return strings.Contains(body, "\nheddle_control_connected 1\n")
	}
	s.until("connected", connected)
	s.stopPlane()
	s.until("the connection is lost", func() bool { return !connected() })
	s.plane.told = nil
	s.plane.tell(service(vip, "192.0.2.2:8081"))
	s.servePlane()
	s.until("news of the authority as published", s.reaches("8081"))

	s.stopPlane()
	s.plane.ca = pki.New(t, "demo.test")
	s.api.publish(s.plane.ca.RootsPEM())
	s.plane.tell(service(vip, "192.0.2.2:8080"))
	s.servePlane()
	s.until("news of a new authority", s.reaches("8080"))
}
