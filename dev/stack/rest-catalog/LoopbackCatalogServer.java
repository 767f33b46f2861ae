package org.apache.iceberg.rest;

import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.eclipse.jetty.compression.gzip.GzipCompression;
import org.eclipse.jetty.compression.server.CompressionHandler;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's reference REST catalog, bound to the loopback address.
 *
 * <p>{@link RESTCatalogServer} takes a port but no host: it listens on every interface, and with
 * SO_REUSEPORT, so that two servers can share one port unnoticed. This class builds the same
 * catalog from the same environment variables and serves it on 127.0.0.1 alone.
 */
public final class LoopbackCatalogServer {
  private LoopbackCatalogServer() {}

  public static void main(String[] args) throws Exception {
    Method backend = RESTCatalogServer.class.getDeclaredMethod("initializeBackendCatalog");
    backend.setAccessible(true);
    RESTCatalogServer.CatalogContext catalog =
        (RESTCatalogServer.CatalogContext) backend.invoke(new RESTCatalogServer());

    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    RESTCatalogAdapter adapter = new RESTServerCatalogAdapter(catalog);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(adapter)), "/*");
    CompressionHandler compression = new CompressionHandler();
    compression.putCompression(new GzipCompression());
    context.insertHandler(compression);

    int port = Integer.parseInt(System.getenv("REST_PORT"));
    Server server = new Server(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
